/** A copy button for every piece of code, also in parts of a page that are exchanged. */

import { say } from "./words";

/** Add one to each `<pre>` under `part` that has none. */
function addCopyButtons(part: ParentNode): void {
  for (const code of part.querySelectorAll<HTMLElement>("pre:not([data-copied])")) {
    code.dataset["copied"] = "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "second copy";
    button.textContent = say("Copy");
    button.addEventListener("click", () => void copied(code, button));
    const row = document.createElement("div");
    row.className = "copyrow";
    code.replaceWith(row);
    row.append(code, button);
  }
}

async function copied(code: HTMLElement, button: HTMLElement): Promise<void> {
  const works = await write(code);
  button.textContent = works ? say("Copied") : say("Select and copy it yourself");
  setTimeout(() => (button.textContent = say("Copy")), 2000);
}

async function write(code: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
    return true;
  } catch {
    // On a plain address in a classroom there is no clipboard to write to; the text is marked for the keyboard.
    getSelection()?.selectAllChildren(code);
    return false;
  }
}

addCopyButtons(document);
document.addEventListener("renewed", (event) => addCopyButtons(event.target as Element));
