"""Errors and findings about what organizers bring: formats, encodings, fields, copies, pictures."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, NOTHING_CHANGED, Entry, Severity

INTAKE: dict[str, Entry] = {
    "E424": Entry(
        "Format not opened",
        Severity.MEDIUM,
        "{name} is {what}, which is not opened here.",
        "{advice}, and upload the new file.",
    ),
    "E425": Entry(
        "File name not readable",
        Severity.MEDIUM,
        "A name in the archive is not UTF-8 or too long (it looks like “{name}”).",
        "Rename the files and folders, pack them again, and upload the new file.",
    ),
    "E426": Entry(
        "File names in an old encoding",
        Severity.LOW,
        "Names in the archive are not UTF-8. They were read as Windows-1252, as in “{name}”.",
        "Check the names of the classes or files. If they are wrong, rename the files and upload a new archive.",
    ),
    "E427": Entry(
        "Not readable as JSON",
        Severity.MEDIUM,
        "{name} is named JSON, but it has no JSON objects that can be read.",
        "Write one object per line (JSON Lines) or one array of objects, and upload the new file.",
    ),
    "E428": Entry(
        "Old text encoding",
        Severity.LOW,
        "{name} is not UTF-8. It was read as {encoding}.",
        "Check the accents in the pieces of text. If they are wrong, save the file as UTF-8 and upload it again.",
    ),
    "E429": Entry(
        "Several fields with text",
        Severity.LOW,
        "The rows have several fields with text: {fields}. The run learns from “{field}”.",
        "Choose another field if that is not the one you mean.",
    ),
    "E430": Entry(
        "No such field",
        Severity.LOW,
        "No row has text in a field called {field}. Fields with text: {fields}.",
        "Choose one of these fields.",
        means=NOTHING_CHANGED,
    ),
    "E431": Entry(
        "Control characters removed",
        Severity.LOW,
        "{count} control characters, such as NUL, were removed from the text.",
        "Check the pieces of text. If words are missing, export the file again.",
    ),
    "E432": Entry(
        "Damaged characters",
        Severity.LOW,
        "The text has {count} characters {what}.",
        "Look for an undamaged copy, or save the file again as UTF-8 from where it still looks right.",
    ),
    "E433": Entry(
        "Text with markup",
        Severity.LOW,
        "The text has {count} HTML tags, and the model would learn to write them.",
        "Upload the text without the tags, unless you want them.",
    ),
    "E434": Entry(
        "Encoding recognised",
        Severity.LOW,
        "{name} was read as {encoding}.",
        "Nothing has to be done if the pieces of text look right.",
    ),
    "E435": Entry(
        "Held-out part recognised",
        Severity.LOW,
        "The data have a part that was set aside ({part}). It is held out, and nothing is learned from it.",
        "To train on everything, upload the data without folders or files called val, valid, dev or test.",
    ),
    "E436": Entry(
        "Conversations as plain text",
        Severity.LOW,
        "The rows are conversations (field “{field}”). They are written out as “user: …” and “assistant: …”.",
        "To train a chat model on them, choose the recipe “Fine-tune a language model”.",
    ),
    "E437": Entry(
        "Repeated rows",
        Severity.LOW,
        "{repeats} of {rows} rows repeat an earlier one. Copies always go to the same part, training or held-out.",
        "Remove copies if they are not meant to count several times.",
    ),
    "E438": Entry(
        "Many rows left out",
        Severity.LOW,
        "{left} of {rows} rows are left out, most of them {reason}.",
        "Check the examples. If the rows have text, tell the site which field it is in.",
    ),
    "E439": Entry(
        "Held-out part also trained on",
        Severity.LOW,
        "{percent} % of the held-out part also occurs in the training part, so its loss says little about new data.",
        "Remove the copies from the training part, or let the site choose what is held out.",
    ),
    "E440": Entry(
        "Nothing held out",
        Severity.LOW,
        "The data repeat themselves so much that nothing could be held out without training on it too.",
        "Add data that occur once. Without a held-out part, the run shows no held-out loss.",
    ),
    "E441": Entry(
        "Images scaled",
        Severity.LOW,
        "{count} images have 16 bits or floats per pixel. Each was scaled to 8 bits by its own darkest and "
        "brightest pixel.",
        "Check the examples. To keep absolute brightness, convert them to 8 bits yourself.",
    ),
    "E442": Entry(
        "Same image in two classes",
        Severity.LOW,
        "{count} images are in more than one class, as in {classes}.",
        "Check whether the folders are right: a model cannot tell such classes apart.",
    ),
    "E443": Entry(
        "Images without content",
        Severity.LOW,
        "{count} of {images} images have a single colour.",
        "Check the examples, and how the files were exported.",
    ),
    "E444": Entry(
        "Files left out",
        Severity.LOW,
        "{left} files in the archive are left out: {reasons}.",
        "Check the examples, and convert what should be learned from.",
    ),
    "E445": Entry(
        "Check the data first",
        Severity.LOW,
        "The run's data have not been checked since they were read.",
        "Look at what was understood on the manage page (or GET /api/v1/runs/NAME/verdict), and publish from there.",
        means=NOTHING_BEGUN,
    ),
    "E454": Entry(
        "JSON breaks off",
        Severity.MEDIUM,
        "{name} cannot be read after its first {rows} rows (at “{text}”).",
        "Write one object per line (JSON Lines); a broken row then costs only itself. Upload the new file.",
    ),
    "E446": Entry(
        "Looks like a test set",
        Severity.LOW,
        "{name} looks like a part that was set aside for testing, and the run learns from it.",
        "To hold it out, pack it and the training part as test and train into one zip, and upload that.",
    ),
}
