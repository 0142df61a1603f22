import { expect, it } from "vitest";

import { bounds, columns, smoothed } from "../src/curve";

it("smoothing begins at the first value and keeps a constant", () => {
  expect(smoothed([5, 5, 5], 0.9)).toEqual([5, 5, 5].map((value) => expect.closeTo(value)));
  expect(smoothed([8, 2, 2], 0.5)[0]).toBe(8);
  expect(smoothed([8, 2], 0)).toEqual([8, 2]);
});

it("columns follow steps or time", () => {
  const points = [[1, 6, 1000] as const, [2, 5, 1010] as const];
  expect(columns(points, "step", 0).x).toEqual([1, 2]);
  expect(columns(points, "time", 0).x).toEqual([1000, 1010]);
});

it("the axis holds the curve and the line to beat", () => {
  const [low, high] = bounds([3, 5], 6);
  expect(low).toBeLessThan(3);
  expect(high).toBeGreaterThan(6);
  expect(bounds([0.01], null)[0]).toBe(0);
});
