import { afterEach, expect, it, vi } from "vitest";

import { label, ordinal, say, sayCount } from "../src/words";

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

afterEach(() => {
  vi.unstubAllGlobals();
  vi.resetModules();
});

async function wordsIn(lang: string, catalogue: object): Promise<typeof import("../src/words")> {
  vi.stubGlobal("document", {
    documentElement: { lang },
    getElementById: () => ({ textContent: JSON.stringify(catalogue) }),
  });
  vi.resetModules();
  return import("../src/words");
}

it("says in English what stands in the call", () => {
  expect(say("{done} of {size}, {unknown}", { done: 1, size: "2 MB" })).toBe("1 of 2 MB, {unknown}");
  expect(sayCount("{number} step", "{number} steps", 1)).toBe("1 step");
  expect(sayCount("{number} step", "{number} steps", 1200)).toBe("1,200 steps");
  expect([1, 2, 3, 11, 1022].map(ordinal)).toEqual(["1st", "2nd", "3rd", "11th", "1,022nd"]);
});

it("says in another language what the page brings, and the rest in English", async () => {
  const bengali = await wordsIn("bn", { Copy: "কপি", "{number} step": ["{number}টি ধাপ", "{number}টি ধাপ"], "{number}th": "{number} নম্বর" });
  expect(bengali.say("Copy")).toBe("কপি");
  expect(bengali.say("Copied")).toBe("Copied");
  expect(bengali.sayCount("{number} step", "{number} steps", 1200)).toBe("1,200টি ধাপ");
  expect(bengali.ordinal(14)).toBe("14 নম্বর");
});

it("writes times with Western figures", async () => {
  const bengali = await wordsIn("bn", {});
  expect(bengali.label(new Date(2026, 10, 21, 8, 5, 7), 15)).toBe("08:05:07");
  expect(bengali.label(new Date(2026, 10, 21), 86_400)).toMatch(/^21 \D+$/);
});
