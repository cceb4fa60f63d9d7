"""Models of any opset as models of the newest one."""
