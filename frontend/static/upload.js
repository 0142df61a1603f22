// A text goes to the site in pieces while the rest of the form is filled in. It waits while the network is away, and
// goes on where the site says it is: also after a reload, when the same file is chosen again. Without this script the
// form carries the file itself.

const PIECE = 1_000_000; // bytes of one request
const WAITS_S = [1, 2, 4, 8, 15]; // before a piece is tried again

class Refused extends Error {
  constructor(code, title, text) {
    super(`${title} (${code}). ${text}`);
    this.code = code;
  }
}

class Upload {
  constructor(field) {
    this.field = field;
    this.form = field.closest("form");
    this.input = field.querySelector("input[type=file]");
    this.kept = field.querySelector("input[name=upload]");
    this.bar = field.querySelector("progress");
    this.says = field.querySelector("[data-says]");
    this.fault = field.querySelector("[data-fault]");
    this.turn = 0; // another file was chosen: what an older turn still does counts no more
    this.running = null;
    this.submitter = null;
    this.input.addEventListener("change", () => this.choose());
    addEventListener("pageshow", () => this.comeBack());
    this.form.addEventListener("submit", (event) => this.submit(event));
    if (this.input.files.length) this.choose(); // chosen before this script was here
  }

  /** A page that comes back by the Back button can be sent again. */
  comeBack() {
    this.input.disabled = false;
  }

  choose() {
    const file = this.input.files[0];
    this.turn += 1;
    this.kept.value = "";
    this.running = null;
    this.show("", "");
    this.bar.hidden = true;
    if (!file) return;
    const limit = Number(this.field.dataset.limit);
    if (file.size === 0) return this.show("", this.field.dataset.empty);
    if (file.size > limit) return this.show("", this.field.dataset.tooLong.replace("SIZE", inMegabytes(file.size)));
    this.running = this.send(file, this.turn);
  }

  async send(file, turn) {
    const key = `manyhands upload ${file.name} ${file.size} ${file.lastModified}`;
    try {
      let at = (await this.known(key)) ?? (await this.announce(file, key));
      while (turn === this.turn && at.offset < file.size) {
        this.progress(at.offset, file);
        at = { ...at, offset: await this.piece(at, file) };
      }
      if (turn !== this.turn) return;
      this.progress(file.size, file);
      forget(key);
      this.kept.value = at.id;
      this.bar.hidden = true;
      this.show(`${file.name} is here, ${megabytes(file.size)}.`, "");
    } catch (error) {
      if (turn !== this.turn) return;
      forget(key);
      this.bar.hidden = true;
      this.show("", error.message);
    } finally {
      if (turn === this.turn) this.running = null;
    }
  }

  /** Where an upload of the same file stopped, if the site still has it. */
  async known(key) {
    const id = remembered(key);
    if (!id) return null;
    const answer = await this.ask(`${id}/`, { method: "HEAD" });
    return answer.ok ? { id, offset: Number(answer.headers.get("Upload-Offset")) } : null;
  }

  async announce(file, key) {
    const body = JSON.stringify({ filename: file.name, size: file.size });
    const answer = await this.ask("", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    const { id, offset } = await said(answer);
    remember(key, id);
    return { id, offset };
  }

  /** The offset behind one more piece. */
  async piece(at, file) {
    const body = file.slice(at.offset, at.offset + PIECE);
    const headers = { "Upload-Offset": String(at.offset), "Content-Type": "application/offset+octet-stream" };
    let answer = await this.ask(`${at.id}/`, { method: "PATCH", body, headers });
    if (answer.status === 409) answer = await this.ask(`${at.id}/`, { method: "HEAD" });
    if (!answer.ok) await said(answer);
    return Number(answer.headers.get("Upload-Offset"));
  }

  /** A request that is repeated until the site answers it. */
  async ask(path, options) {
    const token = this.form.querySelector("[name=csrfmiddlewaretoken]").value;
    const headers = { ...options.headers, "X-CSRFToken": token };
    for (let attempt = 0; ; attempt += 1) {
      let words = "The site does not answer. The upload waits and goes on by itself; nothing is lost.";
      let wait_s = WAITS_S[Math.min(attempt, WAITS_S.length - 1)];
      try {
        const answer = await fetch(this.field.dataset.upload + path, { ...options, headers });
        const wait = answer.status === 429 || answer.status === 507; // too often, or no room: the site says so
        if (answer.status < 500 && !wait) return answer;
        if (wait) {
          words = `${(await answer.json()).text} The upload goes on by itself then.`;
          wait_s = Number(answer.headers.get("Retry-After")) || wait_s;
        }
      } catch {
        // The network is away; what the site has stays there.
      }
      this.show(words, "");
      await pause(wait_s);
    }
  }

  async submit(event) {
    if (!this.running) {
      if (this.kept.value) this.input.disabled = true; // the file is there already
      else if (!this.fault.hidden && this.input.files.length) event.preventDefault();
      return;
    }
    event.preventDefault();
    const button = event.submitter;
    if (button) button.disabled = true;
    await this.running;
    if (button) button.disabled = false;
    if (this.kept.value) this.form.requestSubmit(button);
    else this.fault.scrollIntoView({ block: "center" });
  }

  progress(done, file) {
    this.bar.hidden = false;
    this.bar.max = file.size;
    this.bar.value = done;
    this.show(`${megabytes(done)} of ${megabytes(file.size)} are here. You can fill in the rest meanwhile.`, "");
  }

  show(words, fault) {
    this.says.textContent = words;
    this.fault.textContent = fault;
    this.fault.hidden = !fault;
  }
}

async function said(answer) {
  if (answer.ok) return answer.json();
  const known = answer.headers.get("Content-Type")?.startsWith("application/json");
  const unknown = { code: answer.status, title: "Upload not taken", text: "Load the page again, then repeat." };
  const { code, title, text } = known ? await answer.json() : unknown;
  throw new Refused(code, title, text);
}

function pause(seconds) {
  return new Promise((go) => {
    const timer = setTimeout(on, seconds * 1000);
    function on() {
      clearTimeout(timer);
      removeEventListener("online", on);
      go();
    }
    addEventListener("online", on);
  });
}

function megabytes(bytes) {
  return bytes < 1_000_000 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

function inMegabytes(size) {
  return Math.ceil(size / 1_000_000).toLocaleString("en");
}

// Private windows may have no storage; then a reload begins anew.
function remembered(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function remember(key, id) {
  try {
    localStorage.setItem(key, id);
  } catch {
    // Nothing to do.
  }
}

function forget(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    // Nothing to do.
  }
}

for (const field of document.querySelectorAll("[data-upload]")) new Upload(field);
