"""Compares the installed CANN with the calls of paddle-custom-npu, by reading their files.

=================  ===================================================================================
``installation``   the folder of CANN, and the versions of its packages
``chip``           the chip families, and the family of a card
``elf``            the dependencies and exports of a shared library
``needs``          the calls of the plugin, and those of Llama training
``check``          the comparison: libraries, symbols, aclnn functions, aclop types
``float_status``   avoids the FloatStatus operators, which the 910C may lack
``compiler``       the C compiler, for the libraries of ``float_status`` and ``bridge``
``bridge``         writes a forwarding ``libopapi.so`` if CANN has only the split libraries
=================  ===================================================================================
"""
