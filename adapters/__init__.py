"""The interfaces of other libraries, one file each, imported only when used."""
