"""Errors about what organizers bring: texts, rows, images, and models that are adapted."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, NOTHING_CHANGED, NOTHING_LOST, Entry, Severity

MATERIAL: dict[str, Entry] = {
    "E372": Entry(
        "Tokenizer does not fit",
        Severity.MEDIUM,
        "The tokenizer cannot be used here: {reason}.",
        "Bring another one, as tokenizer.json or by the name of a model on the Hub, or let one learn from the text.",
    ),
    "E377": Entry(
        "File not suited",
        Severity.MEDIUM,
        "{name} is not what this recipe learns from: {file}.",
        "Choose such a file, or another recipe.",
    ),
    "E378": Entry(
        "Archive not readable",
        Severity.MEDIUM,
        "The archive cannot be read ({reason}).",
        "Pack the folders again with tar, and upload the new file.",
    ),
    "E379": Entry(
        "Archive leads elsewhere",
        Severity.MEDIUM,
        "In the archive, {name} is a link, a device or a path out of its folder.",
        "Pack plain files in plain folders (tar --dereference follows links), and upload the new file.",
    ),
    "E380": Entry(
        "Too few images",
        Severity.MEDIUM,
        "The archive has {images} images in {folders} folders.",
        "Pack folders with images in them (PNG, JPEG, WebP, GIF, BMP or TIFF), two or more where classes are learned.",
    ),
    "E381": Entry(
        "Parquet not readable",
        Severity.MEDIUM,
        "The file cannot be read as Parquet ({reason}).",
        "Write it again, and upload the new file.",
    ),
    "E382": Entry(
        "Rows without text",
        Severity.MEDIUM,
        "None of the first {rows} rows has a text in one of its fields.",
        "Give each row a field with its text, best called “text”, and upload the new file.",
    ),
    "E385": Entry(
        "Too many files",
        Severity.LOW,
        "A run learns from at most {most} files.",
        "Put small ones together into one file, or take one off the run first.",
    ),
    "E386": Entry(
        "Weights do not fit",
        Severity.LOW,
        "{weights} weights were given for {files} files.",
        "Give each file a weight, or none of them. The page shows the files as they are now.",
        means=NOTHING_CHANGED,
    ),
    "E387": Entry(
        "No model to adapt",
        Severity.MEDIUM,
        "A recipe of this kind adapts a model that is there already, and none was given.",
        "Add the model: a zip of its folder, as a release of this site or the Hub has it.",
    ),
    "E388": Entry(
        "No model in it",
        Severity.MEDIUM,
        "This is no model's folder that can be read ({reason}).",
        "Bring a folder with config.json, tokenizer.json and model.safetensors (or its parts with their index), as a "
        "zip or by its name on the Hub.",
    ),
    "E389": Entry(
        "Pickled parameters",
        Severity.MEDIUM,
        "The model's parameters are pickled, and a pickle may run anything.",
        "Save the model as safetensors (`model.save_pretrained(folder)` does), and bring that folder.",
    ),
    "E390": Entry(
        "Not a known model",
        Severity.MEDIUM,
        "This model cannot be adapted here: {reason}.",
        "Take one of these kinds, in 16 or 32 bits, that needs no code of its own: {known}.",
    ),
    "E391": Entry(
        "Model does not fit",
        Severity.MEDIUM,
        "What is in the model's folder does not fit together ({reason}).",
        "Look whether the model loads with transformers, save it again, and bring the new folder.",
    ),
    "E392": Entry(
        "No model wanted",
        Severity.LOW,
        "A recipe of this kind begins with fresh parameters; it adapts no model.",
        "Choose the recipe “Fine-tune a language model” for that.",
    ),
    "E393": Entry(
        "No chat template",
        Severity.MEDIUM,
        "The data are conversations, and the model that is adapted has no template by which it reads those.",
        "Bring a model that is made for chat, or write each conversation out as a text in a field called “text”.",
    ),
    "E394": Entry(
        "Chat template unusable",
        Severity.MEDIUM,
        "The model's chat template writes none of the conversations out ({reason}).",
        "Look whether `tokenizer.apply_chat_template` of transformers takes them, and mend the data or the template.",
    ),
    "E395": Entry(
        "Texts unpack to too much",
        Severity.MEDIUM,
        "The texts in the file's rows, as they are written out, take more than {most} MB: 32 times the file.",
        "Upload the texts as they are, without so much compression, or look what the chat template repeats.",
    ),
    "E396": Entry(
        "Several parts on the Hub",
        Severity.LOW,
        "{repository} has several parts: {parts}.",
        "Say which of them you mean, as in {example}.",
        means=NOTHING_BEGUN,
    ),
    "E397": Entry(
        "Not found on the Hub",
        Severity.MEDIUM,
        "At {endpoint} there is no {kind} {repository} that this site may read ({reason}).",
        "Look at the name. Where its owner lets in only some, agree to the terms there, and save a token of yours on "
        "the page on which you publish a run. Or download it, and bring its files.",
        means=NOTHING_BEGUN,
    ),
    "E398": Entry(
        "No texts on the Hub",
        Severity.MEDIUM,
        "{repository} has no files that texts are read from ({looked_for}).",
        "Choose another one with Parquet, JSON lines or text files, or bring a file of your own.",
        means=NOTHING_BEGUN,
    ),
    "E399": Entry(
        "Other bytes on the Hub",
        Severity.MEDIUM,
        "Of {repository}, {name} is not what the Hub said it was.",
        "Publish the run again: the file is fetched anew. If that does not help, download it and bring it yourself.",
        means=NOTHING_LOST,
    ),
    "E414": Entry(
        "Texts on the Hub are others",
        Severity.MEDIUM,
        "Of {repository}, {name} is not there as it was when the run began ({reason}).",
        "Tell the organizer, who can have the run learn from its other texts alone. If it happens with one machine"
        " only, look whether a proxy stands between it and the Hub.",
        means=NOTHING_LOST,
    ),
    "E415": Entry(
        "Conversations are not streamed",
        Severity.LOW,
        "{repository} is too large for this site to fetch, and its rows are conversations, which machines cannot read"
        " from the Hub.",
        "Name a part of it (owner/name/folder), or a dataset whose rows are texts.",
        means=NOTHING_LOST,
    ),
    "E416": Entry(
        "Rows cannot be read here",
        Severity.MEDIUM,
        "{name} of {repository} cannot be read on this machine ({reason}).",
        "Update the agent and its libraries, or give it more memory. Other machines go on.",
        means=NOTHING_LOST,
    ),
    "E417": Entry(
        "Row groups too large",
        Severity.MEDIUM,
        "The row groups of {repository} have more than {most} MB of text each, which is more than a machine reads at"
        " once.",
        "Write the files again with smaller row groups (row_group_size), or name another dataset.",
        means=NOTHING_BEGUN,
    ),
}
