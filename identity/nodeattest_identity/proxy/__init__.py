"""The reverse proxy of gateway and sidecar: headers, paths, limits, streams, WebSockets."""
