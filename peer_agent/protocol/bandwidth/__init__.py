"""Link capacities, estimated from the bytes that receivers counted. Peers are never asked for their bandwidth."""
