/**
 * The live feed: by socket, by polling while the socket does not work, and back. Knows messages in their order, and
 * nothing of the page. What it needs of the browser is handed in, so that tests can stand in for it.
 */

/** What `platform/web/feed/live.py` writes: everything, or what has changed since the message before. */
export interface Message {
  readonly whole: boolean;
  readonly seq: number;
  /** HTML by name of the part. */
  readonly parts: Readonly<Record<string, string>>;
  readonly chart: unknown;
  readonly standing: string;
}

export interface Socket {
  onmessage: ((event: MessageEvent) => unknown) | null;
  onclose: ((event: CloseEvent) => unknown) | null;
  send(text: string): void;
  close(): void;
}

export interface Browser {
  /** A socket, or an error where there can be none. */
  open(): Socket;
  /** The whole page if it is not the one named by `etag`. */
  poll(etag: string): Promise<Polled>;
  random(): number;
  isHidden(): boolean;
  /** Whether the reader's machine itself has no network. */
  isOffline(): boolean;
}

export interface Polled {
  readonly status: number;
  readonly etag: string;
  readonly text: string;
}

export type Link = "live" | "polling" | "away" | "offline" | "gone";

export const POLL_MS = 1_200; // with what it takes to answer, within two seconds of each step
export const FIRST_POLL_MS = 500; // at most, after a socket was lost: not all of a crowd at once
export const ANSWER_MS = 5_000; // until the first message, or an answer to "again"
export const BEAT = "."; // sent by the site every few seconds when nothing changes
export const QUIET_MS = 9_000; // without a message or a beat, until the socket counts as dead
export const LONGEST_WAIT_MS = 15_000; // between tries

export class Feed {
  private seq = 0;
  private socket: Socket | null = null;
  private tries = 0;
  private etag = "";
  private isLive = false;
  private isPolling = false;
  private hasAsked = false;
  private link: Link | null = null;
  private retry: Timer;
  private patience: Timer;
  private quiet: Timer;
  private polling: Timer;

  constructor(
    private readonly browser: Browser,
    private readonly show: (message: Message) => void,
    private readonly tell: (link: Link) => void,
  ) {}

  /** Begin; again after everything was given up is fine too. */
  start(): void {
    this.connect();
  }

  /** The page is seen again, or the network is back: do not wait for any clock. */
  wake(): void {
    if (this.link === "gone") return;
    if (this.socket) this.ask();
    else {
      this.tries = 0;
      this.connect();
    }
  }

  /** The machine has lost its network: no socket is waited for to find out. */
  cut(): void {
    if (this.link === "gone") return;
    this.lost();
    this.say("offline");
  }

  private connect(): void {
    clearTimeout(this.retry);
    this.expectAnswer();
    try {
      const socket = this.browser.open();
      this.socket = socket;
      socket.onmessage = (event) => this.socket === socket && this.heard(String(event.data));
      socket.onclose = () => this.socket === socket && this.lost();
    } catch {
      this.lost();
    }
  }

  private expectAnswer(): void {
    clearTimeout(this.patience);
    this.patience = setTimeout(() => this.lost(), ANSWER_MS);
  }

  private heard(text: string): void {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.browser.isHidden() || this.lost(), QUIET_MS);
    if (text === BEAT) return;
    const message = JSON.parse(text) as Message;
    if (message.whole) this.take(message);
    else if (this.isLive && message.seq === this.seq + 1) {
      this.seq = message.seq;
      this.show(message);
    } else if (message.seq > this.seq) this.ask();
  }

  private take(message: Message): void {
    clearTimeout(this.patience);
    this.stopPolling();
    this.hasAsked = false;
    this.isLive = true;
    this.tries = 0;
    this.seq = message.seq;
    this.say("live");
    this.show(message);
  }

  /** Ask for the whole page, once. A socket that is not open yet brings it by itself, and takes no word. */
  private ask(): void {
    if (this.hasAsked || !this.socket || !this.isLive) return;
    this.hasAsked = true;
    this.expectAnswer();
    this.socket.send("again");
  }

  private lost(): void {
    const socket = this.socket;
    this.socket = null;
    this.hasAsked = this.isLive = false;
    clearTimeout(this.patience);
    clearTimeout(this.quiet);
    if (socket) {
      socket.onclose = socket.onmessage = null;
      socket.close();
    }
    if (this.link === "gone") return;
    const longest = Math.min(LONGEST_WAIT_MS, 1000 * 2 ** this.tries++);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.browser.random() * longest);
    if (!this.isPolling) this.pollSoon(this.browser.random() * FIRST_POLL_MS);
  }

  private pollSoon(delayMs: number): void {
    this.isPolling = true;
    clearTimeout(this.polling);
    this.polling = setTimeout(() => void this.poll(), delayMs);
  }

  private stopPolling(): void {
    this.isPolling = false;
    clearTimeout(this.polling);
  }

  private async poll(): Promise<void> {
    const polled = await this.browser.poll(this.etag).catch(() => null);
    if (this.isLive) return;
    if (polled?.status === 404 || polled?.status === 403) return this.end();
    if (polled?.status === 200) {
      this.etag = polled.etag;
      this.show(JSON.parse(polled.text) as Message);
    }
    if (polled && polled.status < 400) this.say("polling");
    else this.say(this.browser.isOffline() ? "offline" : "away");
    this.pollSoon(POLL_MS);
  }

  private end(): void {
    this.say("gone");
    this.stopPolling();
    clearTimeout(this.retry);
    this.lost();
  }

  private say(link: Link): void {
    if (link !== this.link) this.tell(link);
    this.link = link;
  }
}

type Timer = ReturnType<typeof setTimeout> | undefined;
