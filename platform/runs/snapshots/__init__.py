"""States of the model: looked at when handed in, replayed, measured, thinned out."""
