"""LIBERO's tasks on MuJoCo Warp, as a plug-in of rlrun: all rows of an env worker together, on its GPU."""
