"""Certification of a policy: what its training saw, the rules of an honest number, and the card that proves them."""
