/** The same vectors as `tests/web/feed/test_changes.py` reads: the reducer is the same in both languages. */

import { describe, expect, it } from "vitest";

import golden from "../../tests/golden/feed.json";
import { apply } from "../src/changes";
import type { Change, Picture } from "../src/picture";

const steps = golden.steps as unknown as { why: string; before: Picture; change: Change; after: Picture }[];

describe("picture and change are the next picture", () => {
  it.each(steps.map((step) => [step.why, step] as const))("%s", (_, { before, change, after }) => {
    const untouched = structuredClone(before);
    expect(apply(before, change)).toEqual(after);
    expect(before).toEqual(untouched);
  });

  it("there are vectors", () => expect(steps.length).toBeGreaterThanOrEqual(7));
});
