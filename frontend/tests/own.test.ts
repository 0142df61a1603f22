/** When a page asks for what only its reader may see, with a clock that we turn. */

import { beforeEach, expect, it, vi } from "vitest";

import { ASK_MS, Own, REST_MS, SEEN_MS } from "../src/own";

let now = 0;
let takesPart = false;
let isSeen = false;
const ask = vi.fn(() => Promise.resolve());

function own(): Own {
  return new Own(ask, () => now, () => takesPart, () => isSeen);
}

/** How often the page asks while the feed brings something each half a second. */
function asked(page: Own, ms: number): number {
  ask.mockClear();
  for (const end = now + ms; now < end; ) {
    now += 500;
    page.look();
  }
  return ask.mock.calls.length;
}

beforeEach(() => {
  [now, takesPart, isSeen] = [0, false, false];
  ask.mockImplementation(() => Promise.resolve());
});

it("a reader who takes part sees their place every few seconds, another one seldom", () => {
  expect(asked(own(), 2 * REST_MS)).toBe(2);
  takesPart = true;
  expect(asked(own(), 2 * REST_MS)).toBe((2 * REST_MS) / ASK_MS);
});

it("a machine that appears or leaves shows at once", () => {
  const page = own();
  asked(page, REST_MS);
  isSeen = true;
  expect(asked(page, 2 * SEEN_MS)).toBe(1);
  expect(asked(page, 2 * SEEN_MS), "once").toBe(0);
});

it("a request that failed is made again soon", async () => {
  const page = own();
  ask.mockImplementation(() => Promise.reject(new Error("away")));
  asked(page, REST_MS);
  await Promise.resolve();
  await Promise.resolve();
  expect(asked(page, SEEN_MS)).toBe(1);
});
