"""What other compilers would launch on a GPU, found out without one."""
