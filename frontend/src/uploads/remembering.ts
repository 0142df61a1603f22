/** Where the uploads of this browser are, so that one goes on after a reload. */

import { type PreviousUpload, type UrlStorage, defaultOptions } from "tus-js-client";

const storage = defaultOptions.urlStorage;

/** Without a storage, or with a full one, an upload goes through all the same; only a reload begins anew. */
export const remembering: UrlStorage = {
  findAllUploads: () => unless(() => storage.findAllUploads(), []),
  findUploadsByFingerprint: (print) => unless(() => storage.findUploadsByFingerprint(print), []),
  removeUpload: (key) => unless(() => storage.removeUpload(key), undefined),
  addUpload: (print, upload: PreviousUpload) => unless(() => storage.addUpload(print, upload), ""),
};

async function unless<T>(action: () => Promise<T>, otherwise: T): Promise<T> {
  try {
    return await action();
  } catch {
    return otherwise;
  }
}
