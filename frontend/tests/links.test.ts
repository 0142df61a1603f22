/** What links carry: asked for by those alone who may have some, after another plan, and not too often. */

import { beforeEach, expect, it } from "vitest";

import golden from "../../tests/golden/feed.json";
import { ASK_MS, Links, type OwnLinks } from "../src/links";
import type { Picture } from "../src/picture";

const picture = golden.steps[0]?.after as unknown as Picture; // Amina and Teo
const found: OwnLinks = { title: "Yours", rows: [], note: "", more: "" };

let asked: number;
let shown: number;
let clock: number;
let answer: () => Promise<OwnLinks>;

const links = (me: string, mayHave: boolean) =>
  new Links(me, mayHave, () => (asked++, answer()), () => clock, () => void shown++);

beforeEach(() => {
  [asked, shown, clock] = [0, 0, 0];
  answer = async () => found;
});

it.each([
  ["nobody", "", true, 0],
  ["a stranger", "Noor", false, 0],
  ["the organizer", "Noor", true, 1],
  ["somebody who trains", "Teo", false, 1],
])("%s asks as often as there may be something", async (_, me, mayHave, times) => {
  const own = links(me, mayHave);
  own.look(picture);
  await Promise.resolve();
  expect([asked, shown, own.known]).toEqual([times, times, times ? found : null]);
});

it("asks once for a plan, and not sooner than after ten seconds", () => {
  const mine = links("Teo", false);
  mine.look(picture);
  mine.look({ ...picture, done: 7 });
  clock = ASK_MS - 1;
  mine.look({ ...picture, planned: "Step 4 is being averaged." });
  expect(asked).toBe(1);
  clock = ASK_MS;
  mine.look({ ...picture, planned: "Step 4 is being averaged." });
  clock = 5 * ASK_MS;
  mine.look({ ...picture, planned: "Step 4 is being averaged." });
  expect(asked).toBe(2);
  mine.look({ ...picture, planned: "Step 4 is being averaged.", training: 3 });
  expect(asked).toBe(3);
});

it("asks again where no answer came", async () => {
  answer = () => Promise.reject(new Error("no network"));
  const mine = links("Teo", false);
  mine.look(picture);
  await Promise.resolve().then(() => Promise.resolve());
  clock = ASK_MS;
  mine.look(picture);
  expect([asked, shown, mine.known]).toEqual([2, 0, null]);
});
