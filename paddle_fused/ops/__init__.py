"""The fused operators, one file each: public function, checks, composed definition, backends."""

from ..captured import arguments_of_blocks_are_copies, run_as_they_are

arguments_of_blocks_are_copies()
run_as_they_are(__name__)
