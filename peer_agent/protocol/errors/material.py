"""Errors about data and models uploaded by organizers: texts, rows, images, models to adapt."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, NOTHING_CHANGED, NOTHING_LOST, Entry, Severity

MATERIAL: dict[str, Entry] = {
    "E372": Entry(
        "Tokenizer does not fit",
        Severity.MEDIUM,
        "The tokenizer cannot be used here: {reason}.",
        "Upload another tokenizer.json, name a model on the Hub, or have the site learn a tokenizer from the text.",
    ),
    "E377": Entry(
        "Wrong kind of file",
        Severity.MEDIUM,
        "{name} does not fit this recipe, which needs {file}.",
        "Choose another file or another recipe.",
    ),
    "E378": Entry(
        "Packed file not readable",
        Severity.MEDIUM,
        "{name} cannot be unpacked ({reason}).",
        "It may be incomplete or damaged. Compare its size with your copy, pack it again, and upload the new file.",
    ),
    "E380": Entry(
        "Too few images",
        Severity.MEDIUM,
        "The archive has {images} in {folders} (other files: {others}).",
        "Pack one folder of images per class (PNG, JPEG, WebP, GIF, BMP or TIFF), and upload the archive.",
    ),
    "E381": Entry(
        "Parquet not readable",
        Severity.MEDIUM,
        "The file cannot be read as Parquet ({reason}).",
        "Export it again and upload the new file.",
    ),
    "E382": Entry(
        "Rows without text",
        Severity.MEDIUM,
        "None of the {rows} rows has text (fields: {fields}).",
        "Give each row a field with text, ideally called “text”, and upload the new file.",
    ),
    "E385": Entry(
        "Too many files",
        Severity.LOW,
        "A run learns from at most {most} files.",
        "Merge small files into one, or remove one from the run first.",
    ),
    "E386": Entry(
        "Wrong number of weights",
        Severity.LOW,
        "{weights} weights were given for {files} files.",
        "Give every file a weight, or none. The page shows the current files.",
        means=NOTHING_CHANGED,
    ),
    "E387": Entry(
        "No model to adapt",
        Severity.MEDIUM,
        "This recipe adapts an existing model, but no model was given.",
        "Upload a zip of the model's folder, such as a release from this site, or name a model on the Hub.",
    ),
    "E388": Entry(
        "No model found",
        Severity.MEDIUM,
        "This is not a readable model folder ({reason}).",
        "Upload a zip of a folder with config.json, tokenizer.json and model.safetensors (or its parts and "
        "their index), or name a model on the Hub.",
    ),
    "E389": Entry(
        "Pickled parameters",
        Severity.MEDIUM,
        "The model's parameters are pickled, and loading a pickle can run any code.",
        "Save the model as safetensors (`model.save_pretrained(folder)` does), and upload that folder.",
    ),
    "E390": Entry(
        "Unsupported model",
        Severity.MEDIUM,
        "This model cannot be adapted here: {reason}.",
        "Choose a model of one of these families, in 16 or 32 bits and without custom code: {known}.",
    ),
    "E391": Entry(
        "Model files do not match",
        Severity.MEDIUM,
        "The files in the model's folder do not match ({reason}).",
        "Check that the model loads with transformers, save it again, and upload the new folder.",
    ),
    "E392": Entry(
        "Model not needed",
        Severity.LOW,
        "This recipe trains from scratch and adapts no model.",
        "To adapt a model, choose the recipe “Fine-tune a language model”.",
    ),
    "E393": Entry(
        "No chat template",
        Severity.MEDIUM,
        "The dataset has conversations, but the model to adapt has no chat template.",
        "Choose a chat model, or write each conversation as plain text in a field called “text”.",
    ),
    "E394": Entry(
        "Chat template unusable",
        Severity.MEDIUM,
        "The model's chat template cannot format any of the conversations ({reason}).",
        "Check that `tokenizer.apply_chat_template` accepts them, and fix the data or the template.",
    ),
    "E395": Entry(
        "Text too large when unpacked",
        Severity.MEDIUM,
        "When unpacked, this file takes more than {most} MB, the limit for a file of its size.",
        "Upload the text with less compression, or check whether the chat template repeats text.",
    ),
    "E396": Entry(
        "Several parts on the Hub",
        Severity.LOW,
        "{repository} has several parts: {parts}.",
        "Name one of them, as in {example}.",
        means=NOTHING_BEGUN,
    ),
    "E397": Entry(
        "Not found on the Hub",
        Severity.MEDIUM,
        "{endpoint} has no {kind} {repository} that this site can read ({reason}).",
        "Check the name. If access is restricted, accept the terms there and save your token on a run's "
        "publish page. Or download it and upload the files here.",
        means=NOTHING_BEGUN,
    ),
    "E398": Entry(
        "No usable text on the Hub",
        Severity.MEDIUM,
        "{repository} has no files with text that a run can learn from ({looked_for}).",
        "Choose a dataset with Parquet, JSON Lines or text files, or upload your own file.",
        means=NOTHING_BEGUN,
    ),
    "E399": Entry(
        "File on the Hub differs",
        Severity.MEDIUM,
        "{name} in {repository} differs from what the Hub listed.",
        "Choose “Try again” on the manage page to download it again. If that fails too, upload it yourself.",
        means=NOTHING_LOST,
    ),
    "E414": Entry(
        "Dataset on the Hub has changed",
        Severity.MEDIUM,
        "{name} in {repository} has changed since the run began ({reason}).",
        "Tell the organizer, who can limit the run to its other datasets. If only one machine is "
        "affected, check for a proxy between it and the Hub.",
        means=NOTHING_LOST,
    ),
    "E415": Entry(
        "Conversations are not streamed",
        Severity.LOW,
        "{repository} is too large for this site to download, and its rows are conversations, which machines "
        "cannot stream from the Hub.",
        "Name a part of it (owner/name/folder), or a dataset whose rows are plain text.",
        means=NOTHING_LOST,
    ),
    "E416": Entry(
        "Rows cannot be read here",
        Severity.MEDIUM,
        "This machine cannot read {name} of {repository} ({reason}).",
        "Update the agent and its libraries, or give it more memory. Other machines continue.",
        means=NOTHING_LOST,
    ),
    "E417": Entry(
        "Row groups too large",
        Severity.MEDIUM,
        "The row groups of {repository} have more than {most} MB of text each, more than a machine reads at once.",
        "Write the files again with smaller row groups (row_group_size), or name another dataset.",
        means=NOTHING_BEGUN,
    ),
}
