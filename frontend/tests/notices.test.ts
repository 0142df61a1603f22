import { expect, test, vi } from "vitest";
import { ASK_MS, type Answer, type Around, type Notice, watch } from "../src/notices/watching";

const first: Notice = { id: 1, headline: "“Proverbs” is finished", text: "The model is ready to download.", path: "/runs/proverbs/" };
const second: Notice = { ...first, id: 2 };

function browser(answers: (Answer | Error)[], memory: { text: string } = { text: "" }) {
  const shown: Notice[] = [];
  const waiting: (() => void)[] = [];
  const around = {
    ask: vi.fn(async () => {
      const answer = answers.shift();
      if (!answer || answer instanceof Error) throw answer ?? new Error("no more");
      return answer;
    }),
    show: (notice: Notice) => void shown.push(notice),
    read: () => memory.text,
    write: (text: string) => void (memory.text = text),
    later: vi.fn((work: () => void) => void waiting.push(work)),
    isAllowed: () => true,
  } satisfies Around;
  return { around, shown, waiting };
}

const told = (...notices: Notice[]): Answer => ({ wanted: true, notices });

test("each is shown once, also after a reload and in another tab", async () => {
  const memory = { text: "" };
  const tab = browser([told(first), told(first, second)], memory);
  await watch(tab.around);
  await watch(tab.around);
  expect(tab.shown.map((notice) => notice.id)).toEqual([1, 2]);
  const other = browser([told(first, second)], memory);
  await watch(other.around);
  expect(other.shown).toEqual([]);
});

test("it asks again after a minute, also where the site was away", async () => {
  const tab = browser([new Error("away"), told(first)]);
  await watch(tab.around);
  expect(tab.around.later).toHaveBeenLastCalledWith(expect.anything(), ASK_MS);
  tab.waiting[0]!();
  await vi.waitFor(() => expect(tab.shown).toHaveLength(1));
});

test("whoever wants none is not asked for again", async () => {
  const tab = browser([{ wanted: false, notices: [] }]);
  await watch(tab.around);
  expect(tab.waiting).toEqual([]);
});

test("a browser that may show none asks nothing", async () => {
  const tab = browser([told(first)]);
  await watch({ ...tab.around, isAllowed: () => false });
  expect(tab.around.ask).not.toHaveBeenCalled();
});

test.each(["{", "7", '["a"]'])("what others have written there is as nothing: %s", async (text) => {
  const tab = browser([told(first)], { text });
  await watch(tab.around);
  expect(tab.shown).toHaveLength(1);
});

test("what is remembered stays short", async () => {
  const memory = { text: "" };
  for (let id = 0; id < 300; id += 10) {
    const page = Array.from({ length: 10 }, (_, place) => ({ ...first, id: id + place }));
    await watch(browser([told(...page)], memory).around);
  }
  expect(JSON.parse(memory.text)).toHaveLength(100);
});
