"""What policies that generate actions by flow matching share; a policy adds its network and its processor."""
