-- none.lua - ul.none: a setting that has no value unless it is given one.
return require('ulysses.recipe.value').none
