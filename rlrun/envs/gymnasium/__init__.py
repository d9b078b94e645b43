"""Any environment of Gymnasium's registry."""
