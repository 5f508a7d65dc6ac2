"""python -m dpsql"""

from dpsql.frontends.cli import main

main()
