"""VISPR as its owners publish it: one JSON file per image, with the privacy attributes that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import DataError, PathLike, check_choice, check_distinct, damaged, field, read_json, relative
from steelyard.labels import Labels

VISPR_LABELS = (
    *("a0_safe", "a1_age_approx", "a2_weight_approx", "a3_height_approx", "a4_gender", "a5_eye_color"),
    *("a6_hair_color", "a7_fingerprint", "a8_signature", "a9_face_complete", "a10_face_partial", "a11_tattoo"),
    *("a12_semi_nudity", "a13_full_nudity", "a16_race", "a17_color", "a18_ethnic_clothing", "a19_name_full"),
    *("a20_name_first", "a21_name_last", "a23_birth_city", "a24_birth_date", "a25_nationality", "a26_handwriting"),
    *("a27_marital_status", "a29_ausweis", "a30_credit_card", "a31_passport", "a32_drivers_license", "a33_student_id"),
    *("a35_mail", "a37_receipt", "a38_ticket", "a39_disability_physical", "a41_injury", "a43_medicine"),
    *("a46_occupation", "a48_occassion_work", "a49_phone", "a55_religion", "a56_sexual_orientation", "a57_culture"),
    *("a58_hobbies", "a59_sports", "a60_occassion_personal", "a61_opinion_general", "a62_opinion_political"),
    *("a64_rel_personal", "a65_rel_social", "a66_rel_professional", "a67_rel_competitors", "a68_rel_spectators"),
    *("a69_rel_views", "a70_education_history", "a73_landmark", "a74_address_current_complete"),
    *("a75_address_current_partial", "a78_address_home_complete", "a79_address_home_partial", "a82_date_time"),
    *("a85_username", "a90_email", "a92_email_content", "a97_online_conversation", "a99_legal_involvement"),
    *("a102_vehicle_ownership", "a103_license_plate_complete", "a104_license_plate_partial"),
)
"""The 68 attributes of VISPR, by the owners' numbers; "a0_safe" says that none of the others is shown."""


def vispr(root: PathLike, split: str, **how: Unpack[Decoding]) -> ImageDataset:
    """Return VISPR with its 68 attributes; ids are the names of the annotation files, such as "2017_10001018".

    Args:
        root: folder that holds the annotations in `annotations/{split}2017/` (or `{split}2017/`) and the images at
            their `image_path`.
        split: "train", "val" or "test".
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.
    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> Path("val2017").mkdir()
        >>> content = {"image_path": "images/val2017/2017_1.jpg", "labels": ["a0_safe"]}
        >>> _ = Path("val2017/2017_1.json").write_text(json.dumps(content))
        >>> data = sy.data.vispr(".", "val")
        >>> data.labels.names[0], data.labels.counts[:3].tolist(), list(data.labels.ids)
        ('a0_safe', [1, 0, 0], ['2017_1'])
    """
    check_choice(split, ("train", "val", "test"), "split")
    home = Path(root)
    places = [home / "annotations" / f"{split}2017", home / f"{split}2017"]
    files = next((matches for place in places if (matches := sorted(place.glob("*.json")))), [])
    if not files:
        raise DataError(f"there are no JSON files in {' nor in '.join(map(str, places))}: unpack the annotations there")
    column = {name: i for i, name in enumerate(VISPR_LABELS)}
    values = np.zeros((len(files), len(VISPR_LABELS)), np.int8)
    paths = []
    for i, file in enumerate(files):
        content = read_json(file)
        for name in field(content, "labels", list, file, "the file"):
            if not isinstance(name, str) or name not in column:
                raise damaged(file, f"the label {name!r:.60} is not one of the 68 of VISPR")
            values[i, column[name]] = 1
        paths.append(relative(field(content, "image_path", str, file, "the file"), file, "image_path"))
    check_distinct(paths, files[0].parent, "the image")
    labels = Labels(values, VISPR_LABELS, [file.stem for file in files])
    return ImageDataset([home / path for path in paths], labels, **how)
