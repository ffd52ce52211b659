#!/usr/bin/env python3
"""Turns a text into the rows on which examples:train trains an exported program.

    python3 tools/tokenize_text.py --tokenizer=FOLDER --in=notes.txt \\
        --model=model.pt2 --out=rows.safetensors --length=512
    python3 tools/tokenize_text.py --tokenizer=FOLDER --in=pairs.jsonl \\
        --model=model.pt2 --out=rows.safetensors --length=512 --pack
    echo 'To be' | python3 tools/tokenize_text.py --tokenizer=FOLDER --encode > prompts.txt
    examples/generate --prompts=prompts.txt ... | \\
        python3 tools/tokenize_text.py --tokenizer=FOLDER --decode

--in is a text, which is cut into rows, or a file of JSON lines (.jsonl):
{"text": ...}, or {"prompt": ..., "answer": ...}, where only the answer and the token
that ends it are targets. Each line is a row, or with --pack several lines share a row.
--model is the program to be trained: the rows have the inputs that it takes. --tokenizer
is a folder with the tokenizer of a model of transformers.

Needs transformers. The file is written without torch.
"""
import argparse
import array
import functools
import json
import os
import struct
import sys
import zipfile

NO_TARGET = -100  # the target that the loss ignores
PLACES, MASK = "position_ids", "attention_mask"
# Numbers of dtypes in a .pt2 file, with their names in a .safetensors file, the code of
# Python's array, and the values for a token that is seen or is not seen.
DTYPES = {5: ("I64", "q", 1, 0), 7: ("F32", "f", 0.0, float("-inf")),
          12: ("BOOL", "b", 1, 0)}


class Input:
    """An input of a program: its name, number of its dtype, and sizes, None if free."""

    def __init__(self, name, dtype, sizes):
        self.name, self.dtype, self.sizes = name, dtype, sizes

    def __str__(self):
        return f"{self.name} [{', '.join('any' if s is None else str(s) for s in self.sizes)}]"


def program_inputs(path):
    """Returns the inputs of a .pt2 file."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((each for each in archive.namelist()
                         if each.split("/")[-2:] == ["models", "model.json"]), None)
            if name is None:
                raise ValueError(f"--model={path} is no file of torch.export.save: it has no "
                                 "models/model.json")
            module = json.loads(archive.read(name))["graph_module"]
    except zipfile.BadZipFile as error:
        raise ValueError(f"--model={path} is no file of torch.export.save: {error}") from None
    inputs = []
    for spec in module["signature"]["input_specs"]:
        tensor = spec.get("user_input", {}).get("arg", {}).get("as_tensor")
        if tensor is None:
            continue
        name = tensor["name"]
        value = module["graph"]["tensor_values"][name]
        inputs.append(Input(name, value["dtype"],
                            [size.get("as_int") for size in value["sizes"]]))
    return inputs


class Form:
    """What the rows of a program look like: their length and their tensors."""

    def __init__(self, inputs, length, pack):
        self.inputs, self.tokens = inputs, None
        for each in inputs:
            known = (each.dtype == 5 and len(each.sizes) == 2
                     or each.name == MASK and len(each.sizes) == 4 and each.dtype in DTYPES
                     and each.sizes[1] == 1)
            if known and each.name not in (PLACES, MASK) and self.tokens is None:
                self.tokens = each
            elif not known or each.name not in (PLACES, MASK):
                raise ValueError(
                    f"the program takes {', '.join(map(str, inputs))}, but there is no value for "
                    f"{each.name}; export a program of int64 [rows, tokens], and perhaps of "
                    f"{PLACES} or {MASK}")
        if self.tokens is None:
            raise ValueError(f"the program takes {', '.join(map(str, inputs))}, but no tokens, "
                             "int64 [rows, tokens]")
        fixed = self.tokens.sizes[1]
        if fixed is not None and length not in (0, fixed):
            raise ValueError(f"--length={length}, but the program was exported for {fixed} "
                             f"tokens; use --length={fixed}, or export a dynamic number")
        self.length = fixed or length
        if self.length < 1:
            raise ValueError(f"--length={length}: must be at least 1")
        # With a mask of two dimensions transformers does not look at the places.
        masks = [len(each.sizes) for each in inputs if each.name == MASK]
        if pack and masks != [4] and (masks or not any(each.name == PLACES for each in inputs)):
            raise ValueError(
                f"--pack puts several lines into a row, but the program takes "
                f"{', '.join(map(str, inputs))}, so that they would see each other; export a "
                f"program that takes {PLACES} and no {MASK}, or {MASK} of "
                "[rows, 1, tokens, tokens]")


def examples_of_text(tokens, length):
    """Cuts the tokens of a text into examples: pairs of tokens and of whether each is a
    target. An example begins with the last token of the one before."""
    return [(tokens[k:k + length + 1], [True] * len(tokens[k:k + length + 1]))
            for k in range(0, max(len(tokens) - 1, 0), length)]


def example_of_line(line, encode, end, end_of_answer):
    """Returns the example of a JSON line. `encode()`: see encoder(). `end`: the token that
    ends a text, `end_of_answer()`: that of an answer. They may be None."""
    if not isinstance(line, dict):
        raise ValueError(f"is {json.dumps(line)[:40]}, but must be an object with text, or prompt "
                         "and answer")
    for name in ("text", "prompt", "answer"):
        if not isinstance(line.get(name, ""), str):
            raise ValueError(f"has the {name} {json.dumps(line[name])[:40]}, which is no text")
    if "text" in line:
        tokens = encode(line["text"], True) + ([] if end is None else [end])
        return tokens, [True] * len(tokens)
    if "prompt" not in line or "answer" not in line:
        raise ValueError(f"has {', '.join(line) or 'nothing'}, but needs text, or prompt and "
                         "answer")
    prompt = encode(line["prompt"], True, is_prompt=True)
    end = end_of_answer()
    answer = encode(line["answer"], False) + ([] if end is None else [end])
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def cut(examples, length):
    """Cuts examples to `length` tokens and a target. Returns those with a target that is
    left, the number of those that were cut, and of those that were left out."""
    kept, shortened = [], 0
    for tokens, targets in examples:
        shortened += len(tokens) > length + 1
        tokens, targets = tokens[:length + 1], targets[:length + 1]
        if any(targets[1:]):
            kept.append((tokens, targets))
    return kept, shortened, len(examples) - len(kept)


def pack(examples, length):
    """Returns rows of examples that have at most `length` tokens without the last of each.
    The longest ones come first, each in the first of 64 rows where it fits. A row keeps the
    order of the examples, and so do the rows by their first ones."""
    order = sorted(range(len(examples)), key=lambda k: -len(examples[k][0]))
    done, rows = [], []  # of pairs: the space left, the examples
    for k in order:
        size = len(examples[k][0]) - 1
        row = next((each for each in rows if each[0] >= size), None)
        if row is None:
            if len(rows) == 64:
                done.append(rows.pop(0))
            row = [length, []]
            rows.append(row)
        row[0] -= size
        row[1].append(k)
    return [[examples[k] for k in row] for row in sorted(sorted(row[1]) for row in done + rows)]


def tensors_of(rows, form, filler):
    """Returns the tensors of rows of examples: by name, the dtype, the sizes and an array.
    The target of a token is the next one of its example. `filler`: the token after the
    last example."""
    length = form.length
    tokens, targets, places, segments = [], [], [], []
    for row in rows:
        begin = len(tokens)
        for number, (each, is_target) in enumerate(row):
            tokens += each[:-1]
            targets += [t if wanted else NO_TARGET for t, wanted in zip(each[1:], is_target[1:])]
            places += range(len(each) - 1)
            segments += [number] * (len(each) - 1)
        left = length - (len(tokens) - begin)
        tokens += [filler] * left
        targets += [NO_TARGET] * left
        places += range(left)
        segments += [-1] * left
    tensors = {}
    for each in form.inputs:
        name, code, seen, unseen = DTYPES[each.dtype]
        sizes = [len(rows), length]
        if each is form.tokens:
            values = tokens
        elif each.name == PLACES:
            values = places
        elif len(each.sizes) == 2:
            values = [int(segment >= 0) for segment in segments]
        else:
            sizes = [len(rows), 1, length, length]
            values = block_mask(segments, length, code, seen, unseen)
        tensors[each.name] = (name, sizes, array.array(code, values))
    tensors["target"] = ("I64", [len(rows), length], array.array("q", targets))
    return tensors


def block_mask(segments, length, code, seen, unseen):
    """Returns whether token i sees token j: an earlier one of the same example, or itself."""
    values = array.array(code)
    for begin in range(0, len(segments), length):
        first = begin
        for i in range(begin, begin + length):
            if segments[i] != segments[first]:
                first = i
            values.extend([unseen] * (first - begin) + [seen] * (i - first + 1)
                          + [unseen] * (begin + length - i - 1))
    return values


def write_safetensors(path, tensors):
    """Writes tensors to a file, which appears only when it is complete."""
    header, offset = {}, 0
    for name, (dtype, sizes, values) in tensors.items():
        end = offset + len(values) * values.itemsize
        header[name] = {"dtype": dtype, "shape": sizes, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in tensors.values():
            if sys.byteorder == "big":
                values = array.array(values.typecode, values)
                values.byteswap()
            file.write(values.tobytes())
    os.replace(path + ".part", path)


def load_tokenizer(folder):
    try:
        from transformers import AutoTokenizer  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise ValueError("transformers is missing: pip install transformers") from None
    if not os.path.isdir(folder):
        raise ValueError(f"--tokenizer={folder} is no folder")
    return AutoTokenizer.from_pretrained(folder)


def encoder(tokenizer, chat):
    """Returns a function of a text that returns its tokens. `begins`: with the token that
    begins a text. `is_prompt`: with the chat template, if `chat` is true."""
    def encode(text, begins, is_prompt=False):
        if is_prompt and chat:
            return list(tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True,
                return_dict=True)["input_ids"])
        tokens = list(tokenizer(text, add_special_tokens=begins).input_ids)
        if begins and tokens and tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()  # some tokenizers end each text
        return tokens
    return encode


def find_end_of_answer(tokenizer, chat):
    """Returns the token that ends an answer: with the chat template, that of the template,
    which may be another one than the end of a text."""
    tail = []
    if chat:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "1"}, {"role": "assistant", "content": "7391"}],
            tokenize=False)
        tail = tokenizer(text.partition("7391")[2], add_special_tokens=False).input_ids
    added = set(tokenizer.get_added_vocab().values()) if tail else ()
    return next((each for each in tail if each in added), tokenizer.eos_token_id)


def read_examples(path, length, tokenizer, chat):
    """Returns the examples of a file."""
    encode, end = encoder(tokenizer, chat), tokenizer.eos_token_id
    # A tokenizer without a template can write texts.
    end_of_answer = functools.cache(lambda: find_end_of_answer(tokenizer, chat))
    with open(path, encoding="utf-8") as file:
        if not path.endswith((".jsonl", ".json")):
            return examples_of_text(encode(file.read(), True), length)
        examples = []
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                examples.append(example_of_line(json.loads(line), encode, end,
                                                end_of_answer))
            except ValueError as error:
                raise ValueError(f"--in={path}, line {number}: {error}") from None
        return examples


def write_rows(flags):
    inputs = program_inputs(flags.model) if flags.model else (
        [Input("input_ids", 5, [None, None])]
        + ([Input(PLACES, 5, [None, None])] if flags.pack else []))
    form = Form(inputs, flags.length, flags.pack)
    tokenizer = load_tokenizer(flags.tokenizer)
    examples, shortened, left_out = cut(
        read_examples(flags.input, form.length, tokenizer, flags.chat), form.length)
    if not examples:
        raise ValueError(f"--in={flags.input} has no token that is a target")
    rows = pack(examples, form.length) if flags.pack else [[each] for each in examples]
    filler = tokenizer.pad_token_id
    if filler is None:
        filler = tokenizer.eos_token_id or 0
    tensors = tensors_of(rows, form, filler)
    write_safetensors(flags.out, tensors)
    used = sum(len(tokens) - 1 for row in rows for tokens, _ in row)
    targets = sum(t != NO_TARGET for t in tensors["target"][2])
    print(f"{len(rows)} rows of {form.length} tokens in {flags.out}: {len(examples)} examples, "
          f"{used} tokens, {targets} targets, {100 * (1 - used / len(rows) / form.length):.1f} % "
          f"padding; {shortened} examples were cut, {left_out} without a target left out")


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tokenizer", required=True, help="a folder with a tokenizer")
    add("--in", dest="input", help="a text, or JSON lines (.jsonl)")
    add("--out", help="the .safetensors file to write")
    add("--model", help="the .pt2 file to be trained; without it the rows have input_ids, and "
                        f"with --pack {PLACES}")
    add("--length", type=int, default=0,
        help="tokens of a row; not needed if the program has a fixed number")
    add("--pack", action="store_true", help="put several JSON lines into a row")
    add("--chat", action="store_true",
        help="write prompts as the tokenizer's chat template does, and end answers with its "
             "token")
    add("--encode", action="store_true", help="turn lines of text into numbers of tokens")
    add("--decode", action="store_true", help="turn lines of numbers of tokens into text")
    flags = parser.parse_args(arguments)
    if flags.encode and flags.decode:
        parser.error("give --encode or --decode")
    if not (flags.encode or flags.decode) and not (flags.input and flags.out):
        parser.error("give --in and --out, or --encode, or --decode")
    return flags


def main(arguments):
    flags = parse(arguments)
    try:
        if flags.encode:
            encode = encoder(load_tokenizer(flags.tokenizer), flags.chat)
            for line in sys.stdin:
                print(*encode(line.rstrip("\n"), True, is_prompt=True))
        elif flags.decode:
            tokenizer = load_tokenizer(flags.tokenizer)
            for line in sys.stdin:
                print(tokenizer.decode([int(each) for each in line.split()]))
        else:
            write_rows(flags)
    except (ValueError, OSError) as error:
        print(f"tokenize_text: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
