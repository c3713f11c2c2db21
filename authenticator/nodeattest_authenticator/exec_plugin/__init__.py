"""What kubelet runs to get its client certificate (client-go exec plugin): fast path, full answer, renewal."""
