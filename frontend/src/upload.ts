/** Forms that bring a text: it goes to the site while the rest is filled in. Without this the form carries the file. */

import { UploadField } from "./uploads/field";

for (const field of document.querySelectorAll<HTMLElement>("[data-upload]")) new UploadField(field);
