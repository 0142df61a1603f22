"""How figures are written in languages whose way Django does not know as pages need it."""
