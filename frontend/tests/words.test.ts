import { expect, it } from "vitest";

import { label } from "../src/words";

it.each([
  [15, 8, 5, 7, "08:05:07"],
  [60, 20, 5, 0, "20:05"],
  [3600, 13, 0, 0, "13:00"],
  [3600, 0, 0, 0, "21 Nov"],
  [86_400, 12, 0, 0, "21 Nov"],
  [30, 0, 0, 0, "00:00:00"],
])("every %d s an axis of time says what fits (%d:%d:%d)", (step, hour, minute, second, words) => {
  expect(label(new Date(2026, 10, 21, hour, minute, second), step)).toBe(words);
});
