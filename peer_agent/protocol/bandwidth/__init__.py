"""Link capacities, estimated from the bytes that receivers count. Peers are never asked for their bandwidth."""
