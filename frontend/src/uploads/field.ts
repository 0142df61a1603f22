/** The field of a form in which a text is chosen: what it shows, and what the form carries in the end. */

import { fileFault, megabytes } from "./answers";
import { say } from "../words";
import { type Page, Sending } from "./sending";

export class UploadField {
  private readonly form: HTMLFormElement;
  private readonly input: HTMLInputElement;
  private readonly kept: HTMLInputElement;
  private readonly bar: HTMLProgressElement;
  private readonly says: HTMLElement;
  private readonly fault: HTMLElement;
  private sending: Sending | null = null;
  private running: Promise<void> | null = null;

  constructor(private readonly field: HTMLElement) {
    this.form = found(field.closest("form"));
    this.input = found(field.querySelector<HTMLInputElement>("input[type=file]"));
    this.kept = found(field.querySelector<HTMLInputElement>("input[name=upload]"));
    this.bar = found(field.querySelector("progress"));
    this.says = found(field.querySelector<HTMLElement>("[data-says]"));
    this.fault = found(field.querySelector<HTMLElement>("[data-fault]"));
    this.input.addEventListener("change", () => this.choose());
    // A page that comes back by the Back button can be sent again.
    addEventListener("pageshow", () => (this.input.disabled = false));
    this.form.addEventListener("submit", (event) => void this.submit(event));
    if (this.chosen) this.choose(); // before this script was here
  }

  private get chosen(): File | null {
    return this.input.files?.[0] ?? null;
  }

  private choose(): void {
    const file = this.chosen;
    this.sending?.stop();
    this.sending = this.running = null;
    this.kept.value = "";
    this.show("", "");
    this.bar.hidden = true;
    if (!file) return;
    const { limit, empty = "", tooLong = "" } = this.field.dataset;
    const fault = fileFault(file.size, Number(limit), { empty, tooLong });
    if (fault) return this.show("", fault);
    const sending = (this.sending = new Sending(file, this.pageFor(file)));
    this.running = this.follow(sending, file);
  }

  private pageFor(file: File): Page {
    const token = found(this.form.querySelector<HTMLInputElement>("[name=csrfmiddlewaretoken]"));
    return {
      endpoint: new URL(this.field.dataset["upload"] ?? "", location.href).href,
      pieceBytes: Number(this.field.dataset["piece"]),
      token: () => token.value,
      came: (size) => this.progress(size, file),
      waits: (words) => this.show(words, ""),
    };
  }

  private async follow(sending: Sending, file: File): Promise<void> {
    const { id, fault } = await sending.end;
    if (sending !== this.sending) return; // another file was chosen
    this.running = null;
    this.kept.value = id;
    this.bar.hidden = true;
    if (fault) this.show("", fault);
    else this.show(say("{file} is uploaded ({size}).", { file: file.name, size: megabytes(file.size) }), "");
  }

  private async submit(event: SubmitEvent): Promise<void> {
    if (!this.running) {
      if (this.kept.value) this.input.disabled = true; // the file is there already
      else if (!this.fault.hidden && this.chosen) event.preventDefault();
      return;
    }
    event.preventDefault();
    const button = event.submitter as HTMLButtonElement | null;
    if (button) button.disabled = true;
    while (this.running) await this.running;
    if (button) button.disabled = false;
    if (this.kept.value) this.form.requestSubmit(button);
    else this.fault.scrollIntoView({ block: "center" });
  }

  private progress(done: number, file: File): void {
    this.bar.hidden = false;
    this.bar.max = file.size;
    this.bar.value = done;
    const places = { done: megabytes(done), size: megabytes(file.size) };
    this.show(say("{done} of {size} uploaded. You can fill in the rest of the form meanwhile.", places), "");
  }

  private show(words: string, fault: string): void {
    this.says.textContent = words;
    this.fault.textContent = fault;
    this.fault.hidden = !fault;
  }
}

/** What the template has. Throws where it does not. */
function found<T>(part: T | null): T {
  if (part === null) throw new Error("a part of the upload's field is missing");
  return part;
}
