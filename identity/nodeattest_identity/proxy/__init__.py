"""What both programs of add-on authentication forward by: headers, paths, limits, streams, WebSockets."""
