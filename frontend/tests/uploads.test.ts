import { expect, it } from "vitest";

import { AWAY, fileFault, megabytes, refusal, uploadId, waitFor } from "../src/uploads/answers";

const answer = (status: number, body = "", retryAfter = "") => ({ status, body, retryAfter });
const full = JSON.stringify({ code: "E328", title: "Disk full", text: "The disk is full." });

it.each([200, 201, 204, 400, 401, 403, 404, 412, 413])("%i is an answer", (status) => {
  expect(waitFor(answer(status), 0)).toBeNull();
});

it("waits ever longer, up to a quarter of a minute, while nobody answers", () => {
  const waits = [0, 1, 2, 3, 4, 5, 100].map((attempt) => waitFor(answer(0), attempt)?.wait_s);
  expect(waits).toEqual([1, 2, 4, 8, 15, 15, 15]);
  expect([0, 500, 502, 503].map((status) => waitFor(answer(status), 0)?.words)).toEqual([AWAY, AWAY, AWAY, AWAY]);
});

it("waits as long as the site says and with its words", () => {
  const words = "The disk is full. The upload will then resume automatically.";
  expect(waitFor(answer(507, full, "60"), 3)).toEqual({ words, wait_s: 60 });
  expect(waitFor(answer(429, full), 1)).toEqual({ words, wait_s: 2 });
  expect(waitFor(answer(429, "<html>", "Wed, 21 Oct"), 0)).toEqual({ words: AWAY, wait_s: 1 });
});

it("asks again without a word where the site is elsewhere in the text", () => {
  expect(waitFor(answer(409, full), 0)).toEqual({ words: "", wait_s: 1 });
});

it("a refusal is said with the site's number and words", () => {
  expect(refusal(answer(507, full))).toBe("Disk full (E328). The disk is full.");
  for (const body of ["", "null", "[]", "{}", "<p>", '"x"']) {
    expect(refusal(answer(403, body))).toBe("Upload not accepted (403). Reload the page and try again.");
  }
});

it("a file that the site would not take is refused before a byte is sent, in the site's words", () => {
  const words = { empty: "nothing in it", tooLong: "is SIZE MB" };
  expect(fileFault(0, 6_000_000, words)).toBe("nothing in it");
  expect(fileFault(6_000_000, 6_000_000, words)).toBe("");
  expect(fileFault(6_000_001, 6_000_000, words)).toBe("is 7 MB");
  expect(fileFault(2_000_000_000, 512_000_000, words)).toBe("is 2,000 MB");
});

it("sizes are written as on the pages", () => {
  expect([0, 1, 301_560, 1_000_000, 12_340_000, 3e9].map(megabytes)).toEqual(["0\u00a0kB", "1\u00a0kB", "302\u00a0kB", "1.0\u00a0MB", "12\u00a0MB", "3.0\u00a0GB"]);
});

it("an upload's name is the end of its address", () => {
  expect(uploadId("https://hands.example/uploads/6f9d/")).toBe("6f9d");
});
