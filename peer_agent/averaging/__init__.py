"""Codecs, reducer, contributor and update log of a round: arrays in, arrays out.

A relay runs all of it without torch. Other rooms move the bytes (`network`), decide who is in a round (`protocol`) and
give gradients their meaning (`training`).
"""
