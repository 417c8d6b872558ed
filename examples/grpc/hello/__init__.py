"""A greeting service, to see what a service changes to use evenly: two lines on each side."""
