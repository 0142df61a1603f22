import { afterEach, expect, it, vi } from "vitest";

import { label, say } from "../src/words";

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
});

it("says in another language what the page brings, and the rest in English", async () => {
  const bengali = await wordsIn("bn", { Copy: "কপি" });
  expect(bengali.say("Copy")).toBe("কপি");
  expect(bengali.say("Copied")).toBe("Copied");
});

it("writes times with Western figures", async () => {
  const bengali = await wordsIn("bn", {});
  expect(bengali.label(new Date(2026, 10, 21, 8, 5, 7), 15)).toBe("08:05:07");
  expect(bengali.label(new Date(2026, 10, 21), 86_400)).toMatch(/^21 \D+$/);
});
