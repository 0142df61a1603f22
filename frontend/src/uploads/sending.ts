/** One text on its way to the site, by tus: it waits while the network is away, and goes on where the site says it is. */

import { DetailedError, type HttpResponse, Upload } from "tus-js-client";

import { type Answer, UNREADABLE, type Wait, refusal, uploadId, waitFor } from "./answers";
import { remembering } from "./remembering";

/** What the sending needs of the page, and what it tells it. Sizes in bytes. */
export interface Page {
  readonly endpoint: string;
  readonly pieceBytes: number;
  token(): string;
  came(size: number): void;
  waits(words: string): void;
}

/** How it ended: an upload's name, or why there is none. Both are empty where it was stopped. */
export interface End {
  readonly id: string;
  readonly fault: string;
}

/** An answer that is none yet. */
class NotYet extends Error {
  constructor(readonly wait: Wait) {
    super(wait.words);
  }
}

export class Sending {
  readonly end: Promise<End>;
  private finish: (end: End) => void = () => undefined;
  private readonly upload: Upload;
  private attempt = 0; // since the site took something
  private isOver = false;

  constructor(private readonly file: File, private readonly page: Page) {
    this.end = new Promise((resolve) => (this.finish = resolve));
    this.upload = new Upload(file, {
      endpoint: page.endpoint,
      chunkSize: page.pieceBytes,
      metadata: { filename: file.name },
      retryDelays: null, // waiting is done here, with words
      urlStorage: remembering,
      removeFingerprintOnSuccess: true,
      onBeforeRequest: (request) => {
        request.setHeader("X-CSRFToken", page.token());
        if (request.getMethod() === "PATCH") page.came(Number(request.getHeader("Upload-Offset")));
      },
      // Before tus looks at it: it would begin anew where the site does not answer for a moment.
      onAfterResponse: (_, response) => this.requireAnswer(answerOf(response)),
      onChunkComplete: () => (this.attempt = 0),
      onSuccess: () => this.over({ id: uploadId(this.upload.url ?? ""), fault: "" }),
      onError: (error) => void this.stumble(error),
    });
    void this.begin();
  }

  /** Send no more of it; what the site has stays there. */
  stop(): void {
    void this.upload.abort();
    this.over({ id: "", fault: "" });
  }

  private async begin(): Promise<void> {
    const [previous] = await this.upload.findPreviousUploads();
    if (previous) this.upload.resumeFromPreviousUpload(previous);
    if (!this.isOver) this.upload.start();
  }

  private requireAnswer(answer: Answer): void {
    const wait = waitFor(answer, this.attempt);
    if (wait) throw new NotYet(wait);
  }

  private async stumble(error: Error | DetailedError): Promise<void> {
    const { causingError = null, originalResponse = null } = error instanceof DetailedError ? error : {};
    const answer = originalResponse ? answerOf(originalResponse) : { status: 0, body: "", retryAfter: "" };
    const wait = causingError instanceof NotYet ? causingError.wait : waitFor(answer, this.attempt);
    if (!wait) return this.over({ id: "", fault: refusal(answer) });
    if (answer.status === 0 && !(await isReadable(this.file))) return this.over({ id: "", fault: UNREADABLE });
    this.attempt += 1;
    if (wait.words) this.page.waits(wait.words);
    await pause(wait.wait_s);
    if (!this.isOver) this.upload.start();
  }

  private over(end: End): void {
    this.isOver = true;
    this.finish(end);
  }
}

function answerOf(response: HttpResponse): Answer {
  const retryAfter = response.getHeader("Retry-After") ?? "";
  return { status: response.getStatus(), body: response.getBody(), retryAfter };
}

/** Whether the file can still be read; the browser says nothing else of one that was changed since it was chosen. */
async function isReadable(file: File): Promise<boolean> {
  return file.slice(0, 1).arrayBuffer().then(
    () => true,
    () => false,
  );
}

/** So long, or until the network is back. */
function pause(seconds: number): Promise<void> {
  return new Promise((go) => {
    const on = () => {
      clearTimeout(timer);
      removeEventListener("online", on);
      go();
    };
    const timer = setTimeout(on, seconds * 1000);
    addEventListener("online", on);
  });
}
