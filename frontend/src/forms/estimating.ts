/** Asks the site what a recipe takes as its fields change: not at each key, and an answer that is overtaken is dropped. */

export const PAUSE_MS = 300;

export class Estimate {
  private asked = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly address: string,
    private readonly names: readonly string[],
    private readonly read: (name: string) => string,
    private readonly show: (rows: string) => void,
    private readonly ask: (address: string) => Promise<string> = rowsAt,
  ) {}

  /** A field has another value. */
  changed(name: string): void {
    if (!this.names.includes(name)) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.renew(), PAUSE_MS);
  }

  private async renew(): Promise<void> {
    const mine = ++this.asked;
    const values = new URLSearchParams(this.names.map((name) => [name, this.read(name)]));
    try {
      const rows = await this.ask(`${this.address}?${values.toString()}`);
      if (mine === this.asked) this.show(rows);
    } catch {
      // What stands there stays: the site says it anew when the form is sent.
    }
  }
}

async function rowsAt(address: string): Promise<string> {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
  return answer.text();
}
