"""What an installed CANN offers, against what paddle-custom-npu calls: read from files, nothing is loaded.

=================  ===================================================================================
``installation``   where CANN is installed, the versions of its packages, and the order of versions
``chip``           the families of chips, and which one a card has
``elf``            what a shared library needs and exports
``needs``          what the plugin calls, and which calls a training of Llama makes
``check``          the comparison: libraries, symbols, aclnn functions, aclop types
``bridge``         a forwarding ``libopapi.so`` for a CANN that has only the libraries it was split into
=================  ===================================================================================
"""
