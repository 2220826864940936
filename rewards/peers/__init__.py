"""The rewards of other papers and code bases, as kernels over the same arrays; one file per family.

Every function takes ``pred_box`` [..., 4], ``gt_box`` [..., 4] (both None where a reward has no use for them) and, by name,
``pred_point``, ``kind``, ``image_wh`` and ``format_ok`` as `rewards.geometry.given` describes them, then arrays of its own and
``options``. It returns a NamedTuple with at least ``reward`` and ``valid``. Unless it says otherwise, a row is invalid, and all
its parts 0, where nothing was parsed, a number is not finite, or the target is no proper box.
"""
