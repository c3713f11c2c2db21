"""``nodeattest issuer serve``: the documents of one issuer or of a whole fleet's, over HTTPS, for anybody."""
