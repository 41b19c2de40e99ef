"""Files that install packages by commands: Dockerfiles, shell and job scripts, CI workflows."""
