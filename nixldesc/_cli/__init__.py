"""What ``python -m nixldesc`` does: demo, show, locate, check. Never imported by the library.

::

    main                        words on the command line -> one of the four, exit codes
    show  locate  check  demo   what each of them says
    files                       layouts in JSON files, and one clear line for a wrong one
    regions                     a region and a section in words and figures
    picture, svg                pages drawn to scale: in characters, as SVG
    screen                      text, tables, a progress line: with rich on a terminal, plain elsewhere
"""
