"""The names of the shop's groups, in one place for its processes."""

SHOP_GROUP = "shop"
LOGISTICS, POINTS, CART = "logistics", "points", "cart"
GROUPS = (LOGISTICS, POINTS, CART)
