"""DSRL: soft actor-critic over the first noise of a flow policy that stays as it is."""
