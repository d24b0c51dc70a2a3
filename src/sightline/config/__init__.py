"""Recipes: YAML files that describe a whole run; a wrong one cannot be expressed. Blocks of plug-ins live with them."""
