"""The places where Ray's token is searched, and what is refused."""

from __future__ import annotations

import os
import stat

import pytest

from rlrun.cluster import ray_address
from rlrun.system.errors import RunError

ADDRESS = "10.77.0.1:6379"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """An empty home folder, and an environment without a token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(ray_address.TOKEN, "")  # so that the value set by a test is undone
    monkeypatch.delenv(ray_address.TOKEN_PATH, raising=False)
    monkeypatch.delenv(ray_address.MODE, raising=False)
    return tmp_path


def token_file(path, text="of a file\n", mode=0o600):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_private_ray_has_a_token_of_its_own_in_the_environment_only(home):
    ray_address.use_new()
    token = os.environ[ray_address.TOKEN]
    assert len(bytes.fromhex(token)) == 32 and list(home.iterdir()) == []
    ray_address.use_new()
    assert os.environ[ray_address.TOKEN] == token  # Ray has read it


def test_no_ray_is_started_without_a_token(monkeypatch):
    monkeypatch.setenv(ray_address.MODE, "disabled")
    with pytest.raises(RunError, match="starts no Ray without a token") as raised:
        ray_address.use_new()
    assert raised.value.remedy == "unset RAY_AUTH_MODE"
    ray_address.use_known(ADDRESS)  # a foreign cluster may have none
    assert os.environ[ray_address.TOKEN] == ""


def test_a_head_writes_its_token_for_its_user_only(home):
    path = ray_address.use_or_create(6379)
    token = os.environ[ray_address.TOKEN]
    assert path == home / ".rlrun" / "ray_token_6379" and path.read_text() == token and len(token) == 64
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    os.environ[ray_address.TOKEN] = ""
    ray_address.use_known(ADDRESS)
    assert os.environ[ray_address.TOKEN] == token and token not in ray_address.copy_line("train", 6379)
    ray_address.remove(path)
    assert not path.exists()


def test_a_new_head_has_a_new_token_and_the_old_one_does_not_remove_it():
    path = ray_address.use_or_create(6379)
    old = os.environ[ray_address.TOKEN]
    os.environ[ray_address.TOKEN] = ""
    assert ray_address.use_or_create(6379) == path and path.read_text() != old
    os.environ[ray_address.TOKEN] = old
    ray_address.remove(path)
    assert path.exists()


@pytest.mark.parametrize("use", [lambda: ray_address.use_known(ADDRESS), lambda: ray_address.use_or_create(6379)])
def test_a_given_token_is_used(home, monkeypatch, use):
    token_file(home / ".rlrun" / "ray_token_6379")
    monkeypatch.setenv(ray_address.TOKEN_PATH, str(token_file(home / "mine", "of a named file")))
    use()
    assert os.environ[ray_address.TOKEN] == "of a named file"
    monkeypatch.setenv(ray_address.TOKEN, "of the environment")
    use()
    assert os.environ[ray_address.TOKEN] == "of the environment"


def test_rays_own_file_comes_last(home):
    token_file(home / ".ray" / "auth_token", "of Ray")
    ray_address.use_known(ADDRESS)
    assert os.environ[ray_address.TOKEN] == "of Ray"


def test_a_missing_token_is_refused_with_a_command():
    with pytest.raises(RunError, match=f"no token for the Ray cluster at {ADDRESS}") as raised:
        ray_address.use_known(ADDRESS)
    assert "scp -p 10.77.0.1:.rlrun/ray_token_6379 ~/.rlrun/ray_token_6379" in raised.value.remedy
    assert raised.value.key == "RAY_AUTH_TOKEN"


@pytest.mark.parametrize(
    ("mode", "text", "cause", "remedy"),
    [(0o644, "x", "its mode is 644", "chmod 600"), (0o620, "x", "620", "chmod 600"), (0o600, "\n", "empty", "openssl")],
)
def test_a_file_that_others_can_read_or_that_is_empty_is_refused(home, monkeypatch, mode, text, cause, remedy):
    monkeypatch.setenv(ray_address.TOKEN_PATH, str(token_file(home / "mine", text, mode)))
    for use in (lambda: ray_address.use_known(ADDRESS), lambda: ray_address.use_or_create(6379)):
        with pytest.raises(RunError, match="file with Ray's token cannot be used") as raised:
            use()
        assert cause in raised.value.cause and remedy in raised.value.remedy


def test_a_named_file_that_is_missing_is_refused(home, monkeypatch):
    token_file(home / ".rlrun" / "ray_token_6379")
    monkeypatch.setenv(ray_address.TOKEN_PATH, str(home / "nowhere"))
    with pytest.raises(RunError, match="cannot be used") as raised:
        ray_address.use_known(ADDRESS)
    assert raised.value.cause == "No such file or directory" and raised.value.value == str(home / "nowhere")


def test_a_user_without_a_home_folder_can_join_and_is_told_where_a_head_s_token_would_be(monkeypatch):
    """As a container that was started for a number: no entry in /etc/passwd, and no HOME."""
    monkeypatch.setattr(ray_address, "home_folder", lambda: None)
    with pytest.raises(RunError, match="There is no token"):
        ray_address.use_known(ADDRESS)
    with pytest.raises(RunError, match="HOME is not set") as refused:
        ray_address.use_or_create(6379)
    assert refused.value.key == "HOME" and ray_address.TOKEN in str(refused.value.remedy)
    monkeypatch.setenv(ray_address.TOKEN, "given")  # as the remedy says
    assert ray_address.use_or_create(6379) is None


def test_a_home_folder_in_which_nothing_can_be_written(monkeypatch, home):
    (home / ".rlrun").write_text("no folder")
    monkeypatch.setenv(ray_address.TOKEN, "")
    with pytest.raises(RunError, match="FileExistsError") as refused:
        ray_address.use_or_create(6379)
    assert refused.value.value == str(home)
