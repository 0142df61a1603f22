/** The feed against a browser of its own, with a clock that we turn. */

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { ANSWER_MS, BEAT, Feed, LONGEST_WAIT_MS, type Link, type Message, POLL_MS, type Polled, QUIET_MS, type Socket } from "../src/feed";

const whole = (seq: number): Message => ({ whole: true, seq, parts: { head: "<p>7</p>" }, chart: null, standing: "open" });
const change = (seq: number): Message => ({ ...whole(seq), whole: false, parts: { head: "<p>8</p>" } });
const [first, second] = [whole(7), change(8)];

class FakeSocket implements Socket {
  onmessage: Socket["onmessage"] = null;
  onclose: Socket["onclose"] = null;
  said: string[] = [];
  isClosed = false;
  send = (text: string) => void this.said.push(text);
  close = () => void (this.isClosed = true);
  hears = (message: Message) => this.onmessage?.({ data: JSON.stringify(message) } as MessageEvent);
  breaks = () => this.onclose?.({} as CloseEvent);
}

class FakeBrowser {
  sockets: FakeSocket[] = [];
  polls: string[] = [];
  answer: Polled | null = null;
  isBlocked = false;
  chance = 1;
  open = () => {
    if (this.isBlocked) throw new Error("blocked");
    this.sockets.push(new FakeSocket());
    return this.last;
  };
  poll = async (etag: string) => {
    this.polls.push(etag);
    if (!this.answer) throw new Error("no network");
    return this.answer;
  };
  random = () => this.chance;
  isHidden = () => false;
  isAway = false;
  isOffline = () => this.isAway;
  get last(): FakeSocket {
    return this.sockets.at(-1) as FakeSocket;
  }
}

let browser: FakeBrowser;
let shown: string[];
let links: Link[];
let feed: Feed;

beforeEach(() => {
  vi.useFakeTimers();
  [browser, shown, links] = [new FakeBrowser(), [], []];
  feed = new Feed(browser, ({ whole, seq }) => shown.push(`${whole ? "whole" : "change"} ${seq}`), (link) => links.push(link));
  feed.start();
});
afterEach(() => void vi.useRealTimers());

const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);
const polled = (status: number): Polled => ({ status, etag: '"e"', text: JSON.stringify(whole(0)) });

describe("by socket", () => {
  it("shows the page and what changes, and asks for nothing else", async () => {
    browser.last.hears(first);
    browser.last.hears(second);
    await pass(QUIET_MS - 1);
    expect(shown).toEqual(["whole 7", "change 8"]);
    expect([links, browser.polls, browser.last.said, browser.sockets.length]).toEqual([["live"], [], [], 1]);
  });

  it("asks again, once, over a gap, and goes on from the whole page", () => {
    browser.last.hears(whole(3));
    browser.last.hears(change(5));
    browser.last.hears(change(6));
    expect(browser.last.said).toEqual(["again"]);
    expect(shown).toEqual(["whole 3"]);
    browser.last.hears(whole(6));
    browser.last.hears(change(7));
    expect(shown.at(-1)).toBe("change 7");
  });

  it("a change that the whole page has already is passed over", () => {
    browser.last.hears(whole(8));
    browser.last.hears(change(8));
    expect([shown, browser.last.said]).toEqual([["whole 8"], []]);
  });

  it("a page that is seen again asks at once, and leaves a socket that does not answer", async () => {
    browser.last.hears(first);
    feed.wake();
    expect(browser.last.said).toEqual(["again"]);
    const [dead] = browser.sockets;
    await pass(ANSWER_MS);
    expect(dead?.isClosed).toBe(true);
    await pass(1000);
    expect(browser.sockets.length).toBe(2);
  });

  it("a page that wakes while its socket opens says nothing into it", () => {
    feed.wake();
    expect([browser.last.said, browser.sockets.length]).toEqual([[], 1]);
    browser.last.hears(first);
    feed.wake();
    expect([shown, browser.last.said]).toEqual([["whole 7"], ["again"]]);
  });

  it("a beat shows that the site is there, and changes nothing", async () => {
    browser.last.hears(first);
    for (let beats = 0; beats < 3; beats++) {
      await pass(QUIET_MS - 1);
      browser.last.onmessage?.({ data: BEAT } as MessageEvent);
    }
    expect([shown, links, browser.sockets.length]).toEqual([["whole 7"], ["live"], 1]);
  });

  it("a site that falls silent is left for another within ten seconds", async () => {
    browser.answer = polled(200);
    browser.last.hears(first);
    const silent = browser.last;
    await pass(QUIET_MS);
    expect(silent.isClosed).toBe(true);
    await pass(1000);
    expect([links, browser.sockets.length, QUIET_MS + 1000 <= 10_000]).toEqual([["live", "polling"], 2, true]);
  });

  it("a hidden page takes no silence for an end, since its clocks are slow", async () => {
    browser.isHidden = () => true;
    browser.last.hears(first);
    await pass(10 * QUIET_MS);
    expect(browser.sockets.length).toBe(1);
  });
});

describe("when the socket is lost", () => {
  it("waits longer after each try, never longer than the longest, and at random", async () => {
    browser.answer = polled(304);
    for (const longest of [1000, 2000, 4000, 8000, LONGEST_WAIT_MS, LONGEST_WAIT_MS]) {
      const tries = browser.sockets.length;
      browser.last.breaks();
      await pass(longest - 1);
      expect(browser.sockets.length).toBe(tries);
      await pass(1);
      expect(browser.sockets.length).toBe(tries + 1);
    }
    browser.chance = 0.25;
    browser.last.breaks();
    await pass(LONGEST_WAIT_MS / 4);
    expect(browser.sockets.length).toBe(8);
  });

  it("after a restart it goes on by itself", async () => {
    browser.last.hears(whole(90));
    browser.last.breaks();
    await pass(1000);
    browser.last.hears(whole(1));
    browser.last.hears(change(2));
    expect(shown.at(-1)).toBe("change 2");
    expect(links.at(-1)).toBe("live");
    const polls = browser.polls.length;
    await pass(3 * POLL_MS);
    expect(browser.polls.length).toBe(polls);
  });

  it("a reader who comes back does not wait for the clock", async () => {
    browser.answer = polled(304);
    for (let tries = 0; tries < 6; tries++) {
      browser.last.breaks();
      await pass(LONGEST_WAIT_MS);
    }
    browser.last.breaks();
    const tries = browser.sockets.length;
    feed.wake();
    expect(browser.sockets.length).toBe(tries + 1);
  });
});

describe("where sockets are blocked", () => {
  it.each([true, false])("polls again and again, with what it has (throws: %s)", async (throws) => {
    browser.answer = polled(200);
    browser.isBlocked = throws;
    browser.last.breaks();
    await pass(500);
    expect([shown, links]).toEqual([["whole 0"], ["polling"]]);
    browser.answer = { status: 304, etag: "", text: "" };
    await pass(2 * POLL_MS);
    expect(browser.polls).toEqual(["", '"e"', '"e"']);
    expect(shown.length).toBe(1);
  });

  it("is not kept from polling by sockets that fail at once", async () => {
    browser.answer = polled(304);
    browser.isBlocked = true;
    browser.chance = 0.01;
    browser.last.breaks();
    await pass(10 * POLL_MS);
    expect(browser.polls.length).toBeGreaterThanOrEqual(10);
  });

  it("a socket that stays silent counts as blocked", async () => {
    browser.answer = polled(200);
    await pass(ANSWER_MS + 500);
    expect(links).toEqual(["polling"]);
  });

  it("goes back to the socket when it works", async () => {
    browser.answer = polled(200);
    browser.last.breaks();
    await pass(1000);
    browser.last.hears(first);
    expect(links).toEqual(["polling", "live"]);
    const polls = browser.polls.length;
    await pass(QUIET_MS - 1);
    expect(browser.polls.length).toBe(polls);
  });

  it("says so where nothing answers, and goes on trying", async () => {
    browser.last.breaks();
    await pass(500);
    expect(links).toEqual(["away"]);
    browser.answer = polled(200);
    await pass(POLL_MS);
    expect(links).toEqual(["away", "polling"]);
  });

  it("stops where the run is gone", async () => {
    browser.answer = polled(404);
    browser.last.breaks();
    await pass(100_000);
    const { sockets, polls } = browser;
    expect([links, polls.length, sockets.length]).toEqual([["gone"], 1, 1]);
    feed.wake();
    expect(browser.sockets.length).toBe(1);
  });
});

describe("without a network of one's own", () => {
  it("says so at once, and goes on when it is back", async () => {
    browser.last.hears(whole(0));
    browser.isAway = true;
    feed.cut();
    expect(links).toEqual(["live", "offline"]);
    await pass(10 * LONGEST_WAIT_MS);
    expect(links).toEqual(["live", "offline"]);
    browser.isAway = false;
    feed.wake();
    browser.last.hears(whole(1));
    expect(links).toEqual(["live", "offline", "live"]);
  });

  it("is not said of a run that is not to be seen any more", async () => {
    browser.answer = polled(404);
    browser.last.breaks();
    await pass(POLL_MS);
    feed.cut();
    expect(links).toEqual(["gone"]);
  });
});
