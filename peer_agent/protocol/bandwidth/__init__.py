"""Link capacities, learned from bytes that receivers counted. Peers are never asked for them."""
