"""Commands the three roles; knows no Ray."""
