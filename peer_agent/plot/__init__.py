"""The loss curve as a picture, for pages, previews and release cards: where all of it stands, its inks, its SVG.

Not responsible for what the numbers mean, or for the live page, which `frontend/src/curve.ts` draws by the same rules.
"""
